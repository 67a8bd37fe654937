"""Text in, text out: translate and classify with a ticket."""
