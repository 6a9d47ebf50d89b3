"""One batch on several units at once: measured, planned and run, each unit in a process or thread of its own."""
