"""One script for each claim that Omnibus makes of its speed and size; see ``README.md`` here."""
