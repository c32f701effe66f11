"""What an actor is: channels, supervision, fault points. The substrate on trio."""
