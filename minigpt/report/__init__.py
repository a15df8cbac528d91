"""Pictures and pages of a run. Read page.py first: record.py (what the files say) -> curves.py -> page.py, frame.py."""
