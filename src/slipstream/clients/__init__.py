"""Programs that use a served model: what each needs to know, and what of it the server does."""
