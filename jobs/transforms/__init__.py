"""What transforms do to rows, by type. The SQL of `sql` transforms is made by the planner."""
