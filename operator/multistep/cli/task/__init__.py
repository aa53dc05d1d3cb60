"""Commands on task directories: init, check, build, package.

init, scaffold           `init` and its template
check, examine           `check`: all checks of a task in order
findings                 findings and their locations: file, line, step
lint, no_effect, submission_imports    likely mistakes
build                    `build`
package, publish         `package`: manifests; pushes a bundle
task_directory           a task directory: bundle, name, image
"""
