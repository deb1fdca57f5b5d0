"""What checks of more than one area use."""
