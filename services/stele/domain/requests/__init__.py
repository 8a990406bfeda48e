"""Which requests were decided, and how: one id has one outcome for as long as it is remembered."""
