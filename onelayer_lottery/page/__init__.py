"""A ticket in one web page: the program in JavaScript, and what puts it together."""
