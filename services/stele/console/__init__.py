"""The console: a page that shows the cluster live and at any epoch of its past (``docs/console.md``)."""
