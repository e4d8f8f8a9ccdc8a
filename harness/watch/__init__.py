"""Whether a job still gets on, and where its ranks stand when it does not.  Standard library only: the supervisor's."""
