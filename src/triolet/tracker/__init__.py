"""Life of a request. In: Submit. Out: Admit. Owns admission, deadlines and the registry."""
