/*
 * embed.h: files that the command carries with it (tools/cmake/PleatEmbed.cmake); each ends in a
 * zero byte.
 */
#ifndef PLEAT_TOOLS_EMBED_H
#define PLEAT_TOOLS_EMBED_H

extern const unsigned char embed_page_html[];
extern const unsigned char embed_page_css[];
extern const unsigned char embed_page_js[];
extern const unsigned char embed_live_js[];
extern const unsigned char embed_map_js[];
/* The plotting library, from the distribution's package. Empty where the build did not find it. */
extern const unsigned char embed_plot_js[];
extern const unsigned char embed_plot_css[];

#endif
