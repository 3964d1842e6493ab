"""One group after the other gets another plan or drafter; all are rolled back if one fails."""
