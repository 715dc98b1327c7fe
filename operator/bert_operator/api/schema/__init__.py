"""Types of the job and of its status, as users and the API server see them."""
