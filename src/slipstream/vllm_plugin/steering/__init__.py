"""What steers a running engine from within: its scheduler, its ledger of requests, its recorder."""
