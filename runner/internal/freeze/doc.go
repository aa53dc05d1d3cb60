// Package freeze stops all processes of the environment, so that a checkpoint packs a consistent state of their files.
// It returns the set of stopped processes, which resumes them after the checkpoint.
package freeze
