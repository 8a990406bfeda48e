"""The console: a page that shows the cluster live and at any past epoch (``docs/guides/console.md``)."""
