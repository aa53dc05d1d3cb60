"""The object store: PREFIX/NAMESPACE/NAME/UID/ has a trial's files and a manifest, which is written last.

object_store      an object store by URL: s3://, gs://, az://
bucket_results    results of a trial in it
upload_results    uploads finished trials; presigned URLs for uploads by pods
"""
