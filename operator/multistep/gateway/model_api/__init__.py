"""Formats of the four model APIs (OpenAI's two, Anthropic's, Gemini's). Pure; untrusted JSON in bounded memory.

routes                      paths that are forwarded
request_parsers             model and token limits of a request; costly_content, provider_tools: what costs more than its text
answer_parsers              usage, errors and end of an answer; server_sent_events: events of a stream
error_blame                 whom a provider's error blames: the request, the provider, the configuration
error_answers               the gateway's own errors, in each API's format
headers                     which headers are forwarded
answer_memory               limits the memory of answers; parsed_json_memory: of parsed JSON
"""
