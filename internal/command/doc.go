// Package command is the common part of the project's command lines: it declares
// and runs commands, prints their output, and turns errors into messages and exit
// statuses.
package command
