"""Which size a text and a time want. Read law.py first."""
