// Package scripttest makes random scripts, and says what they print without knowing the
// compiler of scripts.
package scripttest
