"""256-bit integers and decimals of 39 to 76 digits in SQL."""
