"""The object store: PREFIX/NAMESPACE/NAME/UID/ has a trial's files and a manifest, which is written last.

object_store      an object store, given by its URL (s3://, gs:// or az://)
bucket_results    a trial's results in the object store
upload_results    uploads finished trials, and creates presigned URLs with which pods upload
"""
