"""The formats of the four model APIs (two of OpenAI, Anthropic's, Gemini's). These modules do no IO, and parse untrusted JSON in
bounded memory.

routes             the paths that the gateway forwards
forwarded_headers  the headers that it forwards, with the provider's key in place of the token
request_parsers    model and token limits of a request
costly_content     content of a request that costs more than its text
answer_parsers     usage, events, usage, errors and end of an answer
error_blame        whom a provider's error blames: the request, the provider, the configuration
error_answers      the gateway's own errors, in each API's format
answer_memory      limits the memory of answers and of parsed JSON
"""
