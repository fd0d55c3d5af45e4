"""What people look at: tables, pictures and pages, made from finished results."""
