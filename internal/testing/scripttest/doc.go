// Package scripttest makes random scripts, and predicts their output without
// using the compiler of scripts.
package scripttest
