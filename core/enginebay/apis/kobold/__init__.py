"""KoboldAI's and KoboldCpp's API."""
