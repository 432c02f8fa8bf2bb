"""The HTTP server. It only receives and sends: `srb.wire` reads bodies and makes JSON, the engine does the rest."""
