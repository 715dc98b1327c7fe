"""What the user may say, and what the operator answers: types, validation, reasons. Pure."""
