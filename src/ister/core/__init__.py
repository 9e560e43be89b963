"""Pure decisions: no clock, no files, no tasks; tested by the ten thousand."""
