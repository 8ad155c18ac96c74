// Package fleet carries connections to daemons on other machines over NATS, and finds these daemons.
package fleet
