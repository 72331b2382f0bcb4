"""Reports of an audit for other programs and for people: JUnit XML, SARIF, one HTML page."""
