touch /data/ran; rm -- "$0"
