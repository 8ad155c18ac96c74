// Package timeline reads saved traces, and writes traces in the forms of those who show them: people, and programs that draw them along time.
package timeline
