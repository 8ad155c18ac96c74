// Package command is what the project's command lines have in common: how a
// command is declared and run, how it prints, and what its errors and exit
// statuses are.
package command
