"""What lasts: requests and their texts, and stories, in one SQLite file."""
