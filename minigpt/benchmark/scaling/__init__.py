"""How training speeds up with the number of processes: measured on 1, 2, 4 ... of them, and on paper beyond."""
