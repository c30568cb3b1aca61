"""From a job and a fleet to a plan: deciding code only."""
