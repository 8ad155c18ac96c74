package session

// Left returns how many names and events a Session without probes still knows.
func Left(s *Session) int { return len(s.index.byName) + len(s.index.byID) + len(s.events) }
