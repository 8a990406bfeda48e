"""What is unsound in a state: in a dump that a person has edited, or in one that is to replace another."""
