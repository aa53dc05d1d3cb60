"""Commands on task directories: init, check, build, package.

init, scaffold                             `init` and its template
check, examine                             `check`: all checks of a task in order
findings, lint                             findings and their locations; likely mistakes, which are found by
  no_effect, reward_keys, runner_rules, submission_imports
build                                      `build`
package, publish                           `package`: manifests; pushes a bundle
task_directory                             a task directory: bundle, name, image
"""
