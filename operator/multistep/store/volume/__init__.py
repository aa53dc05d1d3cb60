"""The results volume: root/NAMESPACE/NAME/UID/ is Harbor's trial directory.

results_volume    everything that the operator does on the volume
build_logs        logs of image builds
"""
