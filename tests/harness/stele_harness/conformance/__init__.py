"""A kit that drives any agent process and names the rule of docs/reference/agent_protocol.md that it breaks.

The agent may be written in any language.
"""
