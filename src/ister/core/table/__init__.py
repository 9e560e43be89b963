"""Rules of a topic's table: its name, its commits, its data files, its maintenance."""
