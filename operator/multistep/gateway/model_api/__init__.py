"""Formats of the four model APIs (OpenAI's two, Anthropic's, Gemini's). Pure; untrusted JSON in bounded memory.

routes             paths that are forwarded; forwarded_headers: headers, with the provider's key in place of the token
request_parsers    model and token limits of a request; costly_content: what costs more than its text
answer_parsers     usage, errors and end of an answer; answer_events: the events of a stream
error_blame        whom a provider's error blames: the request, the provider, the configuration
error_answers      the gateway's own errors, in each API's format
answer_memory      limits the memory of answers and of parsed JSON
"""
