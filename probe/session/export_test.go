package session

// CountLeft returns how many names and events a Session without probes still knows.
func CountLeft(s *Session) int { return len(s.index.named) + len(s.index.snapshot()) + len(s.events) }
