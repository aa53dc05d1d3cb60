"""What many trials come to: numbers with their error bars, and the page that shows them. Not for the operator."""
