"""A kit that drives any agent, a process in any language, and says which rule of docs/agent.md it breaks."""
