"""What makes a well-typed job valid: rules in Python and in CEL."""
